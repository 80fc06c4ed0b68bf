"""The contract of a store as tests, one module per part of stores/base.py."""
