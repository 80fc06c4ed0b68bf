"""Queues on paper: formulas, simulations and the planner (V1 to V4, T4.3, T4.4, T4.6, B6, B8).

    stations, delivery,   closed forms: one station of threads; senders, broker and receivers with
    classes, tails        failures; classes of service; percentiles
    costs                 what dequeuing costs a fabric, by equations (1) to (6)
    petri/                timed coloured Petri nets: description, engine, drawing
    visibility            the document's net of a queue with visibility timeout
    events, fabric        a fabric's dequeue, simulated with the machines of core/dequeue.py
    placement, scaling    rings for many servers under failures; throughput by servers
    planner, calibration  how much a load needs, also from a running server's metrics

Pure: time is simulated, randomness comes from seeds, and of Ringdove only `core` is used. The same
arguments give the same figures on every machine.
"""
