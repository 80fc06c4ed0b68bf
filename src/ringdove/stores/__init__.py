"""Where queues remember everything: one contract, several stores."""
