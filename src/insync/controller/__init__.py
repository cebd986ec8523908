"""The controller: elections and the ends of brokers, in whichever broker holds the node for it."""
