"""Read logins from files of variables, as `baton broker init` writes them."""

import os
import shlex

from baton.core.errors import InvalidValue
from baton.own_files import others_can_read


def read_variables(field: str, path: str) -> dict[str, str]:
    """Return the variables in a file of lines such as MQTT_USERNAME=worker. `field` names the option in messages."""
    try:
        with open(path, encoding="utf-8") as file:
            words = shlex.split(file.read(), comments=True)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidValue(field, f"{path} cannot be read: {why}") from None
    return {name: value for name, equals, value in (word.partition("=") for word in words) if equals}


def read_login(field: str, path: str) -> dict[str, str]:
    """Return user name and password in a file that only the user can read, for the record of a job."""
    variables = read_variables(field, path)
    if others_can_read(os.stat(path)):
        raise InvalidValue(field, f"{path} can be read by other users; run: chmod 600 {path}")
    if not variables.get("MQTT_USERNAME") or not variables.get("MQTT_PASSWORD"):
        raise InvalidValue(field, f"{path} must set MQTT_USERNAME and MQTT_PASSWORD")
    return {"username": variables["MQTT_USERNAME"], "password": variables["MQTT_PASSWORD"]}
