"""The paper's networks: a recurrent inference network and a renderer of linear layers."""
