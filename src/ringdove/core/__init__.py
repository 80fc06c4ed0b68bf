"""The pure heart of Ringdove: formats, indexes and policies.

Nothing here opens a file or a socket, starts a thread, or asks for the time: bytes, numbers and the
clock's answers come in, values go out. The simulations run this very code.
"""
