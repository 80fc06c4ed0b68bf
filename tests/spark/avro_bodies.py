"""Avro's binary encoding, as a device would write it."""

import struct


def number(value):
    """A whole number: the sign in the lowest bit, seven bits to a byte."""
    value = (value << 1) ^ (value >> 63)
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def text(value):
    data = value.encode()
    return number(len(data)) + data


def double(value):
    return struct.pack("<d", value)
