"""The playground: a local web page to query a model.

    page/*  ->  timeouts  ->  security  ->  app  ->  queue  ->  playground  ->  motes.queries
    browser     deadlines     checks of     routes   one        requests to
                              requests               thread     queries

Every request contains its clip; the server keeps no state of its clients.
"""
