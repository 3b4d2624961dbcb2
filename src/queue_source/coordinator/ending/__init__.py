"""The way out: messages are acknowledged, errors logged and sent, objects that were read are deleted or moved."""
