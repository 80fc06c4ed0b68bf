"""Timed coloured Petri nets: described as data, run fast, drawn as SVG (V2).

A net has *places* that hold *tokens*, and *transitions* that take tokens and give others. A token
has a *colour*, a value of its place's colour set, and may have a time before which it cannot be
taken. A transition may fire when each of its arcs finds a token that fits; which of several does is
left to chance. Time moves on when nothing more can fire.

    net         places, arcs, transitions, pages with substitution transitions, monitors
    flattening  pages put into one another
    compiling   a flat net as Python functions, one for each transition
    engine      tokens, time and chance; what monitors saw
    drawing     a page as SVG
"""
