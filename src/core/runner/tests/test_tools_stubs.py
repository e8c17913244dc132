"""The functions that a cell calls tools by: signatures, documentation, and what is refused before anything travels."""

import inspect
import unittest

from tests.tools_kit import SEARCH
from _farcell import tool_stubs


def stub(schema, name="search", doc="Looks for a text."):
    """(the function, the list of what its calls would send)."""
    form, sent = tool_stubs.Form(name, schema), []

    def call(values, others):
        sent.append(form.encode(form.bind(values, others)).decode("utf-8"))
    return tool_stubs.make(form, "farcell_tools", doc, call, None), sent


def shown(function):
    """The signature as Python 3.6 shows it."""
    return str(inspect.signature(function)).replace(" ", "").replace("'", "")


def with_properties(**properties):
    return {"type": "object", "properties": properties}


class Signatures(unittest.TestCase):
    def test_required_parameters_come_first_and_each_kind_in_its_order(self):
        schema = dict(with_properties(b={}, a={"default": 1}, d={}, c={}), required=["c", "b"])
        function, _ = stub(schema)
        self.assertEqual(shown(function), "(b,c,a=1,d=...)")

    def test_types_and_defaults_are_shown(self):
        function, _ = stub(SEARCH["schema"])
        self.assertEqual(shown(function), "(query:str,limit:int=10,deep:bool=...)")
        self.assertEqual((function.__name__, function.__module__, function.__qualname__), ("search", "farcell_tools", "search"))

    def test_several_types(self):
        function, sent = stub(with_properties(a={"type": ["string", "null"]}, b={"anyOf": [{"type": "integer"}, {"type": "array"}]}))
        self.assertEqual(shown(function), "(a:str|None=...,b:int|list=...)")
        function(a=None, b=[1])
        self.assertEqual(sent, ['{"a":null,"b":[1]}'])
        with self.assertRaises(TypeError) as caught:
            function(b=1.5)
        self.assertEqual(str(caught.exception), "search() argument 'b' must be int or list, not float")

    def test_the_documentation_names_the_parameters(self):
        function, _ = stub(SEARCH["schema"])
        self.assertEqual(function.__doc__, "Looks for a text.\n\nArguments:\n    query (str): what to look for")
        self.assertEqual(stub({}, doc="")[0].__doc__, None)

    def test_what_is_no_identifier_is_reached_by_two_stars(self):
        schema = dict(with_properties(**{"from": {"type": "string"}, "a-b": {"default": 3}, "others": {}, "call": {}, "search": {}}), required=["from"])
        function, sent = stub(schema)
        function(1, 2, 3, **{"from": "x"})
        self.assertEqual(sent, ['{"others":1,"call":2,"search":3,"from":"x","a-b":3}'])
        with self.assertRaises(TypeError) as caught:
            function()
        self.assertEqual(str(caught.exception), "search() missing required argument 'from': pass it as **{'from': ...}")
        self.assertIn("from (str, as **{'from': ...})", function.__doc__)

    def test_names_that_python_would_read_as_others(self):
        function, sent = stub(with_properties(**{"\ufb01": {}, "\u00e4": {}, "__debug__": {}}))
        function(1, **{"\ufb01": 2, "__debug__": 3})
        self.assertEqual(sent, ['{"\u00e4":1,"\ufb01":2,"__debug__":3}'])

    def test_without_a_schema_anything_goes_by_name(self):
        for schema in ({}, {"type": "object"}):
            function, sent = stub(schema)
            self.assertEqual(str(inspect.signature(function)), "(**arguments)")
            function(a=1, b=[None])
            self.assertEqual(sent, ['{"a":1,"b":[null]}'])
        self.assertEqual(str(inspect.signature(stub({"properties": {}, "additionalProperties": False})[0])), "()")

    def test_additional_properties(self):
        function, sent = stub(dict(with_properties(a={}), additionalProperties={"type": "integer"}))
        function(a=1, b=2)
        self.assertEqual(sent, ['{"a":1,"b":2}'])
        with self.assertRaises(TypeError) as caught:
            function(b="2")
        self.assertEqual(str(caught.exception), "search() argument 'b' must be int, not str")

    def test_more_parameters_than_a_function_should_have(self):
        function, sent = stub(with_properties(**{"p%d" % number: {} for number in range(400)}))
        function(p1=1, p399=2)
        self.assertEqual(sent, ['{"p1":1,"p399":2}'])

    def test_strange_schemas_are_no_reason_to_fail(self):
        for schema in ({"properties": 3, "required": "x"}, {"properties": {"a": None, "b": {"type": "file"}, "c": {"type": [], "default": 2}}, "required": [1, "z"]},
                       {"properties": {"a": {"anyOf": [True]}}, "additionalProperties": None}):
            function, _ = stub(schema)
            inspect.signature(function)


class Binding(unittest.TestCase):
    def test_pythons_own_words_for_what_does_not_bind(self):
        function, sent = stub(SEARCH["schema"])
        for arguments, named, words in (
                ((), {}, "search() missing 1 required positional argument: 'query'"),
                (("a",), {"qurey": "b"}, "search() got an unexpected keyword argument 'qurey'"),
                (("a",), {"query": "b"}, "search() got multiple values for argument 'query'")):
            with self.assertRaises(TypeError) as caught:
                function(*arguments, **named)
            self.assertTrue(str(caught.exception).startswith(words), caught.exception)
        self.assertEqual(sent, [])

    def test_what_is_left_out_does_not_travel_and_declared_defaults_do(self):
        function, sent = stub(SEARCH["schema"])
        function("x")
        function("x", 3, False)
        self.assertEqual(sent, ['{"query":"x","limit":10}', '{"query":"x","limit":3,"deep":false}'])
        function, sent = stub(with_properties(a={"type": "string", "default": None}))
        function()
        self.assertEqual(sent, ["{}"])

    def test_wrong_types(self):
        function, sent = stub(SEARCH["schema"])
        for named, words in (({"query": 3}, "search() argument 'query' must be str, not int"), ({"query": None}, "search() argument 'query' must be str, not None"),
                             ({"query": "", "limit": True}, "search() argument 'limit' must be int, not bool"),
                             ({"query": "", "limit": 2.0}, "search() argument 'limit' must be int, not float"),
                             ({"query": "", "deep": 1}, "search() argument 'deep' must be bool, not int")):
            with self.assertRaises(TypeError) as caught:
                function(**named)
            self.assertEqual(str(caught.exception), words)
        self.assertEqual(sent, [])

    def test_what_json_cannot_say_names_the_argument(self):
        function, sent = stub(with_properties(a={}, b={}))
        endless = []
        endless.append(endless)
        for value, kind, words in ((float("nan"), ValueError, "cannot be JSON"), ({"x": [float("inf")]}, ValueError, "cannot be JSON"), (set(), TypeError, "set is not JSON"),
                                   (["\ud800"], ValueError, "lone surrogate"), ({(1, 2): 3}, TypeError, "cannot be JSON"), (endless, ValueError, "contains itself"),
                                   (object(), TypeError, "object is not JSON")):
            with self.assertRaises(kind) as caught:
                function(a=1, b=value)
            self.assertIn("search() argument 'b'", str(caught.exception))
            self.assertIn(words, str(caught.exception))
        self.assertEqual(sent, [])

    def test_tuples_and_texts(self):
        function, sent = stub(with_properties(a={"type": "array"}))
        function((1, "\u20ac\n\"\0"))
        self.assertEqual(sent, ['{"a":[1,"\u20ac\\n\\"\\u0000"]}'])


class Async(unittest.TestCase):
    def test_the_twin_for_tasks_has_the_same_signature(self):
        function, _ = stub(SEARCH["schema"])
        self.assertTrue(inspect.iscoroutinefunction(function.aio))
        self.assertEqual(inspect.signature(function.aio), inspect.signature(function))
        self.assertEqual(function.aio.__qualname__, "search.aio")
