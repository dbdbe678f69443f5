"""The OpenAPI description of the JSON API."""

from __future__ import annotations

from typing import Any

from runbooks.webhook import Message


def _answer(description: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema or {"type": "object"}}}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


_REFUSED = {
    "401": _answer("No token, or a wrong one, from another machine", _ref("Problem")),
}
_INCIDENT: dict[str, Any] = {
    "type": "object",
    "required": [
        "id",
        "status",
        "alert",
        "runbook",
        "starts_at",
        "ends_at",
        "received_at",
        "labels",
        "headline",
        "diagnosed",
    ],
    "properties": {
        "id": {"type": "integer"},
        "status": {"enum": ["firing", "resolved"]},
        "alert": {"type": "string"},
        "runbook": {"type": ["string", "null"], "description": "Id of the runbook that treats it"},
        "starts_at": {"type": "string", "format": "date-time"},
        "ends_at": {"type": ["string", "null"], "format": "date-time"},
        "received_at": {"type": "string", "format": "date-time"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "headline": {"type": ["object", "null"], "description": "cause, confidence and place of the first verdict"},
        "diagnosed": {"type": "boolean"},
        "problem": {"type": ["string", "null"], "description": "Why there is no diagnosis"},
        "recording": {
            "type": ["object", "null"],
            "description": "The incident file that is written 15 minutes after it cleared; null until then",
            "properties": {
                "state": {"enum": ["waiting", "recorded", "failed"]},
                "file": {"type": ["string", "null"], "description": "Its name in the folder of incident files"},
                "problem": {
                    "type": ["string", "null"],
                    "description": "Why the last attempt failed, or what was left out",
                },
            },
        },
        "fingerprint": {"type": "string"},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
        "diagnosis": {
            "type": ["object", "null"],
            "description": "The answer of `pagewatch diagnose --json` at starts_at",
        },
    },
}


def description(version: str) -> dict[str, Any]:
    """The whole document, OpenAPI 3.1."""
    message = Message.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = message.pop("$defs", {})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pagewatch",
            "version": version,
            "description": "Alertmanager webhooks in, incidents and diagnoses out. Other machines need a bearer token.",
        },
        "security": [{"bearer": []}, {}],
        "paths": {
            "/api/v1/alerts": {
                "post": {
                    "summary": "Alertmanager webhook (version 4)",
                    "requestBody": {"required": True, "content": {"application/json": {"schema": _ref("Message")}}},
                    "responses": {
                        "200": _answer("Stored; `opened` are the ids of new incidents, `known` counts the others"),
                        "400": _answer("Not a message of version 4", _ref("Problem")),
                        "413": _answer("Larger than the limit", _ref("Problem")),
                        "415": _answer("Not application/json", _ref("Problem")),
                        **_REFUSED,
                    },
                }
            },
            "/api/v1/incidents": {
                "get": {
                    "summary": "Incidents, newest first",
                    "parameters": [
                        {"name": "status", "in": "query", "schema": {"enum": ["firing", "resolved"]}},
                        {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 500}},
                        {"name": "before", "in": "query", "schema": {"type": "integer"}},
                    ],
                    "responses": {
                        "200": _answer(
                            "A page of incidents",
                            {
                                "type": "object",
                                "properties": {"incidents": {"type": "array", "items": _ref("Incident")}},
                            },
                        ),
                        "400": _answer("A parameter is wrong", _ref("Problem")),
                        **_REFUSED,
                    },
                }
            },
            "/api/v1/incidents/{id}": {
                "get": {
                    "summary": "One incident with its diagnosis",
                    "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
                    "responses": {
                        "200": _answer("The incident", _ref("Incident")),
                        "404": _answer("No such incident", _ref("Problem")),
                        **_REFUSED,
                    },
                }
            },
            "/api/v1/diagnose": {
                "get": {
                    "summary": "The diagnosis of an instant",
                    "parameters": [
                        {
                            "name": "at",
                            "in": "query",
                            "schema": {"type": "string"},
                            "description": "RFC 3339 or unix seconds",
                        }
                    ],
                    "responses": {
                        "200": _answer("The answer of `pagewatch diagnose --json`"),
                        "400": _answer("A parameter is wrong", _ref("Problem")),
                        "502": _answer("The source cannot be asked", _ref("Problem")),
                        **_REFUSED,
                    },
                }
            },
            "/healthz": {"get": {"summary": "Whether this process works", "responses": {"200": _answer("It does")}}},
            "/metrics": {
                "get": {
                    "summary": "This process's own metrics",
                    "responses": {"200": {"description": "Prometheus text", "content": {"text/plain": {}}}},
                }
            },
        },
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Problem": {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]},
                "Incident": _INCIDENT,
                "Message": message,
                **definitions,
            },
        },
    }
