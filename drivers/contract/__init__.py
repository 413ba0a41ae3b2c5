"""The contract between drivers and the gateway: Agent, Codec, specs, events and messages, as plain data. It does no I/O."""
