"""Tiers (M4 to M6): brokers near their consumers, fed by brokers nearer the producers.

    producers -> level 0 (core) -> level 1 (aggregation) -> level 2 (access) -> consumers

A broker of level S is a server with a *relay*, which streams queues from a broker of level S-1 and
appends them under the offsets that their origin gave, so a position means the same at every broker.
The *manager* knows every broker from its reports and answers where to connect.
"""
