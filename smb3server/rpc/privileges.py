"""The privileges that a Windows server knows. ``lsa_privileges`` says which count here. [MS-LSAD 3.1.1.2.1]"""

from __future__ import annotations

from typing import NamedTuple


class Privilege(NamedTuple):
    """A privilege."""

    value: int
    """The low part of its LUID. The high part is 0."""
    name: str
    display_name: str
    """What dialogs show, in English."""


PRIVILEGES = (
    Privilege(2, "SeCreateTokenPrivilege", "Create a token object"),
    Privilege(3, "SeAssignPrimaryTokenPrivilege", "Replace a process level token"),
    Privilege(4, "SeLockMemoryPrivilege", "Lock pages in memory"),
    Privilege(5, "SeIncreaseQuotaPrivilege", "Adjust memory quotas for a process"),
    Privilege(6, "SeMachineAccountPrivilege", "Add workstations to domain"),
    Privilege(7, "SeTcbPrivilege", "Act as part of the operating system"),
    Privilege(8, "SeSecurityPrivilege", "Manage auditing and security log"),
    Privilege(9, "SeTakeOwnershipPrivilege", "Take ownership of files or other objects"),
    Privilege(10, "SeLoadDriverPrivilege", "Load and unload device drivers"),
    Privilege(11, "SeSystemProfilePrivilege", "Profile system performance"),
    Privilege(12, "SeSystemtimePrivilege", "Change the system time"),
    Privilege(13, "SeProfileSingleProcessPrivilege", "Profile single process"),
    Privilege(14, "SeIncreaseBasePriorityPrivilege", "Increase scheduling priority"),
    Privilege(15, "SeCreatePagefilePrivilege", "Create a pagefile"),
    Privilege(16, "SeCreatePermanentPrivilege", "Create permanent shared objects"),
    Privilege(17, "SeBackupPrivilege", "Back up files and directories"),
    Privilege(18, "SeRestorePrivilege", "Restore files and directories"),
    Privilege(19, "SeShutdownPrivilege", "Shut down the system"),
    Privilege(20, "SeDebugPrivilege", "Debug programs"),
    Privilege(21, "SeAuditPrivilege", "Generate security audits"),
    Privilege(22, "SeSystemEnvironmentPrivilege", "Modify firmware environment values"),
    Privilege(23, "SeChangeNotifyPrivilege", "Bypass traverse checking"),
    Privilege(24, "SeRemoteShutdownPrivilege", "Force shutdown from a remote system"),
    Privilege(25, "SeUndockPrivilege", "Remove computer from docking station"),
    Privilege(26, "SeSyncAgentPrivilege", "Synchronize directory service data"),
    Privilege(27, "SeEnableDelegationPrivilege", "Enable accounts to be trusted for delegation"),
    Privilege(28, "SeManageVolumePrivilege", "Perform volume maintenance tasks"),
    Privilege(29, "SeImpersonatePrivilege", "Impersonate a client after authentication"),
    Privilege(30, "SeCreateGlobalPrivilege", "Create global objects"),
    Privilege(31, "SeTrustedCredManAccessPrivilege", "Access Credential Manager as a trusted caller"),
    Privilege(32, "SeRelabelPrivilege", "Modify an object label"),
    Privilege(33, "SeIncreaseWorkingSetPrivilege", "Increase a process working set"),
    Privilege(34, "SeTimeZonePrivilege", "Change the time zone"),
    Privilege(35, "SeCreateSymbolicLinkPrivilege", "Create symbolic links"),
)

_BY_NAME = {privilege.name.casefold(): privilege for privilege in PRIVILEGES}
_BY_VALUE = {privilege.value: privilege for privilege in PRIVILEGES}


def by_name(name: str) -> Privilege | None:
    """Return the privilege with a name in whatever case, or None."""
    return _BY_NAME.get(name.casefold())


def by_value(value: int) -> Privilege | None:
    """Return the privilege with a LUID, or None. ``value``: the LUID as one number."""
    return _BY_VALUE.get(value)
