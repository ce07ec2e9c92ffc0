"""Networks and the parts of them that algorithms share."""
