"""Pictures of the web page for the documents: ``python -m tools.web_pictures``. The tests of the page use its scene."""
