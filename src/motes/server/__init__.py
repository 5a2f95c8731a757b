"""The playground: a local web page to query a model.

    page/*  ->  security  ->  app  ->  playground  ->  motes.queries
    browser     deadlines,    routes,  requests to
                checks        queue    queries

Every request contains its clip; the server keeps no state of its clients.
"""
