"""Known bugs, planted one at a time to measure whether the tests find them."""
