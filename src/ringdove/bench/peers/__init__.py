"""`ringdove bench peers`: Ringdove beside other brokers on one machine, in one run.

Each peer is a module with the same shape (`peer.Peer`): it obtains what it needs, starts its server
in a directory of its own on free ports, and has one or more *ways* to be driven. `workloads` says
what is measured, `rounds` takes turns, `report` puts ratios first. `clients` holds what runs in the
processes of senders and receivers.
"""
