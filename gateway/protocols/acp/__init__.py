"""The Agent Client Protocol, version 1, from the agent's side: each agent of the gateway is an agent of that protocol.

Its package takes half a second to import: nothing that starts with the daemon may import the modules of this folder.
"""
