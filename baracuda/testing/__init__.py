"""What every op must satisfy on every backend, as plain functions that any test runner can call.

A backend of one's own is held to the same laws: register it, then run `laws.LAWS` over
`cases.subjects`.
"""
