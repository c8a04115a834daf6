"""What the names of Python's standard library reach: the pure ones, and what each of the others opens."""

from __future__ import annotations

from ringfence.authority.levels import RiskLevel
from ringfence.risk.vocabulary import names

_LOW, _MEDIUM, _HIGH, _CRITICAL = RiskLevel.LOW, RiskLevel.MEDIUM, RiskLevel.HIGH, RiskLevel.CRITICAL
Known = dict[str, tuple[RiskLevel, str]]

# Computation only. A module is here when none of its public functions opens a file, a socket or a process, or runs text
# as code; those few of its names that do are in `ATTRIBUTES`.
PURE_MODULES = names(
    "__future__ abc array base64 binascii bisect calendar cmath collections contextlib copy csv dataclasses datetime "
    "decimal difflib enum fractions functools graphlib hashlib heapq hmac html itertools json keyword math numbers "
    "operator pprint random re secrets statistics string struct textwrap time typing unicodedata zlib"
)

# Their parts that are pure too; `json.tool` and its like are commands.
PURE_PARTS = names("collections.abc json.decoder json.encoder html.parser html.entities")

_FILES = "reaches files"
_NETWORK = "reaches the network"
_PROCESS = "starts processes"
_CODE = "runs or builds code at run time"
_NATIVE = "reaches memory and native code"


def _all(text: str, level: RiskLevel, why: str) -> Known:
    return dict.fromkeys(names(text), (level, why))


MODULES: Known = {
    **_all(
        "io pathlib glob fnmatch fileinput linecache mimetypes codecs locale gettext platform zoneinfo", _LOW, _FILES
    ),
    **_all("numpy pandas scipy sklearn matplotlib PIL polars pyarrow sympy networkx seaborn", _LOW, _FILES),
    "uuid": (_LOW, "may ask other programs for the machine's address"),
    "sys": (_LOW, "reaches the interpreter"),
    "argparse": (_LOW, "reads the command line"),
    "logging": (_MEDIUM, "may write files"),
    **_all("os posix nt", _MEDIUM, "reaches files, processes and the environment"),
    **_all("posixpath ntpath genericpath stat", _LOW, _FILES),
    **_all("shutil tempfile zipfile tarfile gzip bz2 lzma sqlite3 dbm configparser filecmp", _MEDIUM, _FILES),
    **_all("threading concurrent queue sched contextvars asyncio selectors", _MEDIUM, "runs several things at once"),
    **_all("inspect gc weakref types ast dis symtable tokenize traceback atexit", _MEDIUM, "looks into running code"),
    **_all("subprocess multiprocessing pty", _HIGH, _PROCESS),
    **_all(
        "socket ssl http urllib ftplib smtplib poplib imaplib telnetlib nntplib socketserver xmlrpc", _HIGH, _NETWORK
    ),
    **_all("requests httpx aiohttp urllib3 paramiko websocket websockets pycurl scapy boto3", _HIGH, _NETWORK),
    **_all("webbrowser wsgiref cgi asyncore asynchat select", _HIGH, _NETWORK),
    **_all("ctypes _ctypes cffi mmap _posixsubprocess _socket _io", _HIGH, _NATIVE),
    **_all("importlib imp runpy zipimport pkgutil code codeop builtins pip ensurepip venv site timeit", _HIGH, _CODE),
    "copyreg": (_HIGH, _CODE),
    "warnings": (_LOW, "changes what is shown"),
    **_all(
        "pickle marshal shelve dill cloudpickle joblib _pickle doctest pdb bdb cProfile profile trace", _HIGH, _CODE
    ),
    **_all("signal resource fcntl termios tty syslog pwd grp spwd crypt", _HIGH, "reaches the system"),
}

# Dotted names, by what they do wherever they were imported from.
DOTTED: Known = {
    **{
        f"os.{name}": (_HIGH, _PROCESS)
        for name in names(
            "system popen fork forkpty posix_spawn posix_spawnp startfile kill killpg execl execle execlp "
            "execlpe execv "
            "execve execvp execvpe spawnl spawnle spawnlp spawnlpe spawnv spawnve spawnvp spawnvpe"
        )
    },
    **{
        f"os.{name}": (_CRITICAL, "changes privileges or namespaces")
        for name in names("setuid setgid seteuid setegid setreuid setresuid setgroups initgroups chroot setns unshare")
    },
    **{
        f"os.{name}": (_MEDIUM, "changes files")
        for name in names("remove unlink rmdir removedirs rename renames replace truncate chmod chown link symlink")
    },
    "os.memfd_create": (_HIGH, _NATIVE),
    "shutil.rmtree": (_HIGH, "removes whole trees"),
    "sys.modules": (_HIGH, "reaches every loaded module"),
    "sys._getframe": (_HIGH, "reaches the callers' variables"),
    "sys.settrace": (_HIGH, _CODE),
    "sys.setprofile": (_HIGH, _CODE),
    "sys.meta_path": (_HIGH, _CODE),
    "sys.path_hooks": (_HIGH, _CODE),
    "sys.addaudithook": (_HIGH, _CODE),
    "sys.path": (_MEDIUM, "changes where modules come from"),
    "asyncio.create_subprocess_exec": (_HIGH, _PROCESS),
    "asyncio.create_subprocess_shell": (_HIGH, _PROCESS),
    "asyncio.open_connection": (_HIGH, _NETWORK),
    "asyncio.start_server": (_HIGH, _NETWORK),
    "types.FunctionType": (_HIGH, _CODE),
    "types.CodeType": (_HIGH, _CODE),
    "logging.config": (_HIGH, _CODE),
    "pandas.read_pickle": (_HIGH, _CODE),
    "numpy.load": (_MEDIUM, "may unpickle"),
}

BUILTINS: Known = {
    **_all("eval exec compile __import__ breakpoint", _HIGH, _CODE),
    **_all("globals locals", _HIGH, "reaches names by computed text"),
    **_all("vars setattr delattr dir", _MEDIUM, "reaches names by computed text"),
    **_all("help", _LOW, _FILES),
}

# Attributes that lead from any object to the interpreter, whatever the object is called.
ATTRIBUTES: Known = {
    **_all(
        "__subclasses__ __globals__ __builtins__ __code__ __closure__ __mro__ mro __bases__ __base__ __getattribute__ "
        "__reduce__ __reduce_ex__ __import__ __loader__ __spec__ __func__ __self__ __dict__ __wrapped__ __setstate__ "
        "__init_subclass__ __class_getitem__ __match_args__ __instancecheck__ __prepare__",
        _HIGH,
        "climbs from an object to the interpreter",
    ),
    **_all(
        "gi_frame gi_code cr_frame cr_code ag_frame ag_code tb_frame f_globals f_locals f_builtins f_back f_code "
        "func_globals func_code co_consts co_code",
        _HIGH,
        "climbs from a frame to its callers",
    ),
    **_all(
        "get_type_hints ForwardRef evaluate_forward_ref _evaluate _eval_type singledispatch singledispatchmethod",
        _HIGH,
        "evaluates annotations as code",
    ),
    **_all("eval exec bltns", _HIGH, _CODE),  # `enum.bltns` is the module of all built-ins
    **_all("attrgetter methodcaller get_field vformat", _MEDIUM, "reaches attributes by text"),
    **_all("to_pickle read_pickle load_module exec_module create_dynamic", _HIGH, _CODE),
}

# Dunder names every ordinary program uses.
ORDINARY_DUNDERS = names(
    "__name__ __main__ __doc__ __file__ __version__ __all__ __author__ __init__ __new__ __class__ __len__ __str__ "
    "__repr__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __bool__ __iter__ __next__ __getitem__ __setitem__ "
    "__delitem__ __contains__ __call__ __add__ __radd__ __sub__ __mul__ __enter__ __exit__ __slots__ __post_init__ "
    "__annotations__ __qualname__ __module__ __copy__ __deepcopy__ __abs__ __neg__ __int__ __float__ __index__ "
    "__truediv__ __floordiv__ __mod__ __pow__ __iadd__ __and__ __or__ __xor__ __invert__ __format__ __reversed__"
)

# Functions whose result is text or bytes nobody could read in the source.
DECODERS = names(
    "b64decode b32decode b16decode b85decode a85decode standard_b64decode urlsafe_b64decode unhexlify "
    "fromhex decompress "
    "decode loads a2b_base64 a2b_hex rot13 chr unquote"
)
