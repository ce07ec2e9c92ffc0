"""Networks, and the layers that algorithms share."""
