"""The controller: elections, moves and resignations, in the broker that holds `/controller`."""
