"""Controllers: they admit, place, deliver and settle messages, and keep nothing that matters."""
