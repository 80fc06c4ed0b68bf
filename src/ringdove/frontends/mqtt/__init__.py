"""The MQTT gateway: devices publish into queues, and subscribe to what comes back."""

from ringdove.frontends.mqtt.gateway import Gateway, GatewayConfig

__all__ = ["Gateway", "GatewayConfig"]
