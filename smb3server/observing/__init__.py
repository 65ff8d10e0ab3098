"""What a running server tells about itself: metrics, traces, delays of the event loop.

Reading order: ``loop_lag`` -> ``metrics`` -> ``metrics_port`` (for Prometheus) -> ``pcapng`` -> ``trace``.
"""
