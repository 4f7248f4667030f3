"""The text of a kernel: the statements recorded when the body of each role runs once against a `Recorder`.

A body is an ordinary Python function. Knobs and sizes of the schedule are Python numbers in it, so a Python
`if` or `for` over them decides what is recorded. Values that only the kernel knows are expressions
(`expressions.py`), and control flow over them is recorded (`frontend.py`, on top of `recorder.py`). The
result is plain data (`statements.py`): statements in the order of execution, which every printer, the
interpreter and the cost model read. None of them sees the body again.

Leaf maths stays outside the text: a `Leaf` (`leaf.py`) is a name, its parameters and its meaning. A leaf
without a text of its own is spelled by each DSL, under the same name, in `dsl_kernels/kernels/<op>/<dsl>.py`.
"""

from .between_ctas import AwaitCount as AwaitCount
from .between_ctas import ClusterArrive as ClusterArrive
from .between_ctas import ClusterWait as ClusterWait
from .between_ctas import CountIn as CountIn
from .between_ctas import CountOut as CountOut
from .between_ctas import Depend as Depend
from .between_ctas import LaunchDependents as LaunchDependents
from .between_ctas import TakeTicket as TakeTicket
from .expressions import COMPARISONS as COMPARISONS
from .expressions import EVALUATE as EVALUATE
from .expressions import OF_THREADS as OF_THREADS
from .expressions import READ as READ
from .expressions import Expr as Expr
from .expressions import Extent as Extent
from .expressions import Value as Value
from .expressions import ceildiv as ceildiv
from .expressions import dim as dim
from .expressions import evaluate as evaluate
from .expressions import fold as fold
from .expressions import kernel_condition as kernel_condition
from .expressions import maximum as maximum
from .expressions import minimum as minimum
from .expressions import name as name
from .expressions import names_of as names_of
from .expressions import select as select
from .expressions import size_at as size_at
from .expressions import text_of as text_of
from .expressions import without_anew as without_anew
from .leaf import AMBIENT as AMBIENT
from .leaf import Changes as Changes
from .leaf import InOut as InOut
from .leaf import Kind as Kind
from .leaf import Leaf as Leaf
from .leaf import Out as Out
from .leaf import Parameter as Parameter
from .leaf import Record as Record
from .leaf import Sets as Sets
from .leaf import Stored as Stored
from .leaf import Writes as Writes
from .leaf import leaf as leaf
from .leaf import parameters_of as parameters_of
from .leaf import with_records as with_records
from .memory import PLACES as PLACES
from .memory import Box as Box
from .memory import Cluster as Cluster
from .memory import Global as Global
from .memory import Memory as Memory
from .memory import Rows as Rows
from .memory import Sender as Sender
from .memory import Slot as Slot
from .memory import Span as Span
from .memory import View as View
from .recorder import Recorder as Recorder
from .refusals import FAILURES as FAILURES
from .refusals import refusal as refusal
from .refusals import unknown_attribute as unknown_attribute
from .statements import Assign as Assign
from .statements import AwaitProducts as AwaitProducts
from .statements import AwaitStores as AwaitStores
from .statements import BarriersStand as BarriersStand
from .statements import Bulk as Bulk
from .statements import Call as Call
from .statements import Comment as Comment
from .statements import CopyColumns as CopyColumns
from .statements import Declares as Declares
from .statements import Fill as Fill
from .statements import If as If
from .statements import Let as Let
from .statements import Loop as Loop
from .statements import Mark as Mark
from .statements import Meet as Meet
from .statements import Multiply as Multiply
from .statements import PassTurn as PassTurn
from .statements import PipelineOp as PipelineOp
from .statements import Product as Product
from .statements import Publish as Publish
from .statements import Region as Region
from .statements import Repeat as Repeat
from .statements import Statement as Statement
from .statements import Store as Store
from .statements import TakeTurn as TakeTurn
from .statements import TearDown as TearDown
from .statements import Text as Text
from .statements import Variable as Variable
from .statements import values as values
from .statements import walk as walk
from .stealing import AskNext as AskNext
from .stealing import ReadNext as ReadNext
