"""The playground: a page on this machine that asks a model about clips.

    page/*  ->  connection  ->  guard  ->  app  ->  worker  ->  playground  ->  motes.queries
    browser     deadlines      who may    routes    one thread   what it      the answers
                               ask                  and a queue  can do

A clip travels with every question, so the server remembers nothing about anybody.
"""
