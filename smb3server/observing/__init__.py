"""What a running server tells about itself: metrics, traces, delays of the event loop.

Reading order: ``metrics`` and ``metrics_port`` (Prometheus) -> ``pcapng`` and ``trace`` (captures of connections) ->
``loop_lag`` (delays of the event loop).
"""
