"""The diagnosis held against incidents whose truth is known, because a simulator made them."""
