"""All faults. Importing their modules fills the table."""

from __future__ import annotations

from tests.lab.hostile_captures import faults_compression, faults_iwarp, faults_roce, faults_smb2, faults_smbd
from tests.lab.hostile_captures.table import FAULTS, Fault, write

MODULES = (faults_iwarp, faults_roce, faults_smbd, faults_smb2, faults_compression)

__all__ = ["FAULTS", "MODULES", "Fault", "write"]
