"""What a running server tells about itself: metrics, traces, delays of the event loop."""
