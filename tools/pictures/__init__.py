"""Pictures of terminals for the documents: ``python -m tools.pictures`` runs commands and draws what they print."""
