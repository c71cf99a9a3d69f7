"""The verbs of an Operator. They need an accessor and a runtime, and no Operator."""
