package pickle

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// Limits far above a state dict of 100,000 tensors.
const (
	maxPickle = 16 << 20 // bytes
	maxOps    = 1 << 22
	maxDepth  = 64 // of nested marks
	maxName   = 256
)

// Values on the stack are nil, bool, int64, float64, string, tuple, *dict, global, storageType, storage and *view.
type (
	tuple []any
	// dict keeps its keys in insertion order.
	dict struct {
		keys   []string
		values []any
	}
	global      string // "collections.OrderedDict"
	storageType string // dtype, as in package safetensors
	// storage is a record of the archive with numel elements.
	storage struct {
		dtype storageType
		key   string
		numel int64
	}
	// view is a tensor: a view of a storage.
	view struct {
		storage        storage
		offset         int64 // in elements
		shape, strides []int64
	}
)

// Names that a pickle may use, besides storage types.
const (
	orderedDict      global = "collections.OrderedDict"
	rebuildTensor    global = "torch._utils._rebuild_tensor_v2"
	rebuildParameter global = "torch._utils._rebuild_parameter"
)

var storageTypes = map[string]storageType{
	"torch.DoubleStorage": "F64", "torch.FloatStorage": "F32", "torch.HalfStorage": "F16", "torch.BFloat16Storage": "BF16",
	"torch.LongStorage": "I64", "torch.IntStorage": "I32", "torch.ShortStorage": "I16", "torch.CharStorage": "I8",
	"torch.ByteStorage": "U8", "torch.BoolStorage": "BOOL",
}

// machine is pickle's stack machine, with the instructions that torch.save uses for a state dict.
type machine struct {
	in    *bytes.Reader
	stack []any
	marks []int // stack heights
	memo  map[uint32]any
}

// unpickle returns the value that the program in data builds.
func unpickle(data []byte) (any, error) {
	if len(data) < 2 || data[0] != 0x80 {
		return nil, errors.New("not a pickle")
	}
	if data[1] != 2 {
		return nil, fmt.Errorf("pickle protocol %d is not supported; want 2, the default of torch.save", data[1])
	}
	m := &machine{in: bytes.NewReader(data[2:]), memo: map[uint32]any{}}
	for range maxOps {
		op, err := m.in.ReadByte()
		if err != nil {
			return nil, errors.New("no STOP instruction; the file may be truncated")
		}
		if op == '.' {
			if len(m.stack) != 1 || len(m.marks) > 0 {
				return nil, fmt.Errorf("the pickle leaves %d values, want 1", len(m.stack))
			}
			return m.stack[0], nil
		}
		at := len(data) - m.in.Len() - 1
		if err := m.step(op); err != nil {
			return nil, fmt.Errorf("byte %d: %w", at, err)
		}
	}
	return nil, fmt.Errorf("more than %d instructions", maxOps)
}

// step executes an instruction; comments give the names of Python's pickletools.
func (m *machine) step(op byte) error {
	switch op {
	case 'N': // NONE
		return m.push(nil)
	case 0x88: // NEWTRUE
		return m.push(true)
	case 0x89: // NEWFALSE
		return m.push(false)
	case 'J', 'K', 'M', 0x8a, 'G', 'X', 'c':
		return m.constant(op)
	case '}': // EMPTY_DICT
		return m.push(&dict{})
	case ')': // EMPTY_TUPLE
		return m.push(tuple{})
	case '(': // MARK
		if len(m.marks) == maxDepth {
			return fmt.Errorf("values are nested deeper than %d", maxDepth)
		}
		m.marks = append(m.marks, len(m.stack))
		return nil
	case 't': // TUPLE
		values, err := m.popMark()
		if err != nil {
			return err
		}
		return m.push(tuple(values))
	case 0x85, 0x86, 0x87: // TUPLE1, TUPLE2, TUPLE3
		values, err := m.pop(int(op) - 0x84)
		if err != nil {
			return err
		}
		return m.push(tuple(values))
	case 's': // SETITEM
		values, err := m.pop(2)
		if err != nil {
			return err
		}
		return m.set(values)
	case 'u': // SETITEMS
		values, err := m.popMark()
		if err != nil {
			return err
		}
		return m.set(values)
	case 'q', 'r', 'h', 'j':
		return m.remember(op)
	case 'R': // REDUCE
		return m.reduce()
	case 'b': // BUILD
		return m.build()
	case 'Q': // BINPERSID
		return m.persistent()
	}
	return fmt.Errorf("instruction 0x%02x is not allowed in a dictionary of tensors", op)
}

// constant pushes the constant encoded in the instruction.
func (m *machine) constant(op byte) error {
	switch op {
	case 'J': // BININT
		b, err := m.take(4)
		if err != nil {
			return err
		}
		return m.push(int64(int32(binary.LittleEndian.Uint32(b))))
	case 'K': // BININT1
		b, err := m.take(1)
		if err != nil {
			return err
		}
		return m.push(int64(b[0]))
	case 'M': // BININT2
		b, err := m.take(2)
		if err != nil {
			return err
		}
		return m.push(int64(binary.LittleEndian.Uint16(b)))
	case 0x8a: // LONG1
		return m.long()
	case 'G': // BINFLOAT
		b, err := m.take(8)
		if err != nil {
			return err
		}
		return m.push(math.Float64frombits(binary.BigEndian.Uint64(b)))
	case 'X': // BINUNICODE
		b, err := m.take(4)
		if err != nil {
			return err
		}
		if b, err = m.take(int64(binary.LittleEndian.Uint32(b))); err != nil {
			return err
		}
		if !utf8.Valid(b) {
			return errors.New("a string is not valid UTF-8")
		}
		return m.push(string(b))
	}
	module, err := m.line()
	if err != nil {
		return err
	}
	name, err := m.line()
	if err != nil {
		return err
	}
	return m.name(module + "." + name)
}

// long pushes a two's-complement integer of up to 8 bytes.
func (m *machine) long() error {
	b, err := m.take(1)
	if err != nil {
		return err
	}
	n := b[0]
	if n > 8 {
		return fmt.Errorf("integer of %d bytes is too large", n)
	}
	if b, err = m.take(int64(n)); err != nil {
		return err
	}
	var bits uint64
	for i, x := range b {
		bits |= uint64(x) << (8 * i)
	}
	unused := 64 - 8*int(n)
	return m.push(int64(bits<<unused) >> unused)
}

// name pushes an allowed global name.
func (m *machine) name(full string) error {
	if dtype, ok := storageTypes[full]; ok {
		return m.push(dtype)
	}
	switch g := global(full); g {
	case orderedDict, rebuildTensor, rebuildParameter:
		return m.push(g)
	}
	return fmt.Errorf("%.120q is not allowed in a dictionary of tensors", full)
}

// take reads the next n bytes.
func (m *machine) take(n int64) ([]byte, error) {
	if n > int64(m.in.Len()) {
		return nil, fmt.Errorf("%d bytes announced but only %d left; the file may be truncated", n, m.in.Len())
	}
	b := make([]byte, n)
	_, err := m.in.Read(b)
	if n == 0 {
		err = nil
	}
	return b, err
}

// line reads to the end of the line.
func (m *machine) line() (string, error) {
	var b []byte
	for len(b) <= maxName {
		c, err := m.in.ReadByte()
		if err != nil {
			return "", errors.New("unterminated name; the file may be truncated")
		}
		if c == '\n' {
			return string(b), nil
		}
		b = append(b, c)
	}
	return "", fmt.Errorf("name longer than %d bytes", maxName)
}

func (m *machine) push(v any) error {
	m.stack = append(m.stack, v)
	return nil
}

// pop takes n values off the stack, none from below the last mark.
func (m *machine) pop(n int) ([]any, error) {
	floor := 0
	if len(m.marks) > 0 {
		floor = m.marks[len(m.marks)-1]
	}
	from := len(m.stack) - n
	if from < floor {
		return nil, fmt.Errorf("%d values needed but the stack has %d", n, len(m.stack)-floor)
	}
	values := append([]any(nil), m.stack[from:]...)
	m.stack = m.stack[:from]
	return values, nil
}

// popMark takes all values above the last mark, and the mark.
func (m *machine) popMark() ([]any, error) {
	if len(m.marks) == 0 {
		return nil, errors.New("no mark on the stack")
	}
	values, err := m.pop(len(m.stack) - m.marks[len(m.marks)-1])
	m.marks = m.marks[:len(m.marks)-1]
	return values, err
}

// top returns the last value without removing it.
func (m *machine) top() (any, error) {
	values, err := m.pop(1)
	if err != nil {
		return nil, err
	}
	return values[0], m.push(values[0])
}

// set adds alternating keys and values to the dictionary on top.
func (m *machine) set(pairs []any) error {
	v, err := m.top()
	if err != nil {
		return err
	}
	d, ok := v.(*dict)
	if !ok || len(pairs)%2 != 0 {
		return fmt.Errorf("%d keys and values for %s", len(pairs), kind(v))
	}
	for i := 0; i < len(pairs); i += 2 {
		key, ok := pairs[i].(string)
		if !ok {
			return fmt.Errorf("key is %s, want a string", kind(pairs[i]))
		}
		d.keys = append(d.keys, key)
		d.values = append(d.values, pairs[i+1])
	}
	return nil
}

// remember writes or reads the memo.
func (m *machine) remember(op byte) error {
	width := int64(1) // BINPUT, BINGET
	if op == 'r' || op == 'j' {
		width = 4 // LONG_BINPUT, LONG_BINGET
	}
	b, err := m.take(width)
	if err != nil {
		return err
	}
	var wide [4]byte
	copy(wide[:], b)
	id := binary.LittleEndian.Uint32(wide[:])
	if op == 'q' || op == 'r' {
		v, err := m.top()
		m.memo[id] = v
		return err
	}
	v, ok := m.memo[id]
	if !ok {
		return fmt.Errorf("memo entry %d does not exist", id)
	}
	return m.push(v)
}

// build handles the attributes of an OrderedDict, such as _metadata of a state dict; tensors do not depend on them.
func (m *machine) build() error {
	values, err := m.pop(2)
	if err != nil {
		return err
	}
	if _, ok := values[0].(*dict); !ok {
		return fmt.Errorf("attributes for %s are not allowed", kind(values[0]))
	}
	if _, ok := values[1].(*dict); !ok {
		return fmt.Errorf("attributes are %s, want a dictionary", kind(values[1]))
	}
	return m.push(values[0])
}

// kind describes a value for errors.
func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "a boolean"
	case int64, float64:
		return "a number"
	case string:
		return "a string"
	case tuple:
		return fmt.Sprintf("a tuple of %d", len(v))
	case *dict:
		return "a dictionary"
	case storage:
		return "a storage"
	case *view:
		return "a tensor"
	}
	return "a function or type"
}
