"""Training steps of several replicas as one computation on a GPU."""
