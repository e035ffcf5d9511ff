package pickle

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// Limits that a state dict of 100,000 tensors stays below.
const (
	maxPickle = 16 << 20 // bytes
	maxOps    = 1 << 22
	maxDepth  = 64 // of marks within marks
	maxName   = 256
)

// Values on the machine's stack are nil, bool, int64, float64, string, tuple, *dict, global, storageType,
// storage and *view.
type (
	tuple []any
	// dict has its keys in the order in which they came.
	dict struct {
		keys   []string
		values []any
	}
	global      string // "collections.OrderedDict"
	storageType string // dtype, as package safetensors spells it
	// storage is a record of the archive with numel elements.
	storage struct {
		dtype storageType
		key   string
		numel int64
	}
	// view is a tensor: some elements of a storage.
	view struct {
		storage        storage
		offset         int64 // in elements
		shape, strides []int64
	}
)

// What a pickle may name, besides the types of storages.
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

// machine is pickle's stack machine with the instructions that torch.save uses for a state dict.
type machine struct {
	in    *bytes.Reader
	stack []any
	marks []int // heights of the stack
	memo  map[uint32]any
}

// unpickle is the value that the program in data builds.
func unpickle(data []byte) (any, error) {
	if len(data) < 2 || data[0] != 0x80 {
		return nil, errors.New("it does not begin as a pickle does")
	}
	if data[1] != 2 {
		return nil, fmt.Errorf("it is of pickle's protocol %d, only 2 is read, which torch.save uses unless told otherwise", data[1])
	}
	m := &machine{in: bytes.NewReader(data[2:]), memo: map[uint32]any{}}
	for range maxOps {
		op, err := m.in.ReadByte()
		if err != nil {
			return nil, errors.New("it ends before its STOP (is it cut short?)")
		}
		if op == '.' {
			if len(m.stack) != 1 || len(m.marks) > 0 {
				return nil, fmt.Errorf("it stops with %d values, want 1", len(m.stack))
			}
			return m.stack[0], nil
		}
		at := len(data) - m.in.Len() - 1
		if err := m.step(op); err != nil {
			return nil, fmt.Errorf("byte %d: %w", at, err)
		}
	}
	return nil, fmt.Errorf("it has more than %d instructions", maxOps)
}

// step does one instruction; names are those of Python's pickletools.
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
			return fmt.Errorf("values are nested more than %d deep", maxDepth)
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
	return fmt.Errorf("instruction 0x%02x is not one that a dictionary of tensors needs", op)
}

// constant pushes what the bytes of the instruction say.
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
			return errors.New("a text is not valid UTF-8")
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

// long pushes an integer of up to 8 bytes, in two's complement.
func (m *machine) long() error {
	b, err := m.take(1)
	if err != nil {
		return err
	}
	n := b[0]
	if n > 8 {
		return fmt.Errorf("an integer of %d bytes", n)
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

// name pushes what a pickle names, of the little that it may.
func (m *machine) name(full string) error {
	if dtype, ok := storageTypes[full]; ok {
		return m.push(dtype)
	}
	switch g := global(full); g {
	case orderedDict, rebuildTensor, rebuildParameter:
		return m.push(g)
	}
	return fmt.Errorf("it asks for %.120q, which is not of a dictionary of plain tensors", full)
}

// take reads the next n bytes.
func (m *machine) take(n int64) ([]byte, error) {
	if n > int64(m.in.Len()) {
		return nil, fmt.Errorf("%d bytes are announced, %d are left (is it cut short?)", n, m.in.Len())
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
			return "", errors.New("a name does not end (is it cut short?)")
		}
		if c == '\n' {
			return string(b), nil
		}
		b = append(b, c)
	}
	return "", fmt.Errorf("a name is longer than %d bytes", maxName)
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
		return nil, fmt.Errorf("%d values are wanted, the stack has %d", n, len(m.stack)-floor)
	}
	values := append([]any(nil), m.stack[from:]...)
	m.stack = m.stack[:from]
	return values, nil
}

// popMark takes all values down to the last mark, and the mark.
func (m *machine) popMark() ([]any, error) {
	if len(m.marks) == 0 {
		return nil, errors.New("a mark is wanted, the stack has none")
	}
	values, err := m.pop(len(m.stack) - m.marks[len(m.marks)-1])
	m.marks = m.marks[:len(m.marks)-1]
	return values, err
}

// top is the last value, which stays.
func (m *machine) top() (any, error) {
	values, err := m.pop(1)
	if err != nil {
		return nil, err
	}
	return values[0], m.push(values[0])
}

// set puts keys and values by turns into the dictionary on top.
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
			return fmt.Errorf("a key is %s, want a text", kind(pairs[i]))
		}
		d.keys = append(d.keys, key)
		d.values = append(d.values, pairs[i+1])
	}
	return nil
}

// remember writes and reads the memo.
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
		return fmt.Errorf("nothing was remembered as %d", id)
	}
	return m.push(v)
}

// build takes the attributes of an OrderedDict, of which a state dict has _metadata: nothing that tensors
// depend on.
func (m *machine) build() error {
	values, err := m.pop(2)
	if err != nil {
		return err
	}
	if _, ok := values[0].(*dict); !ok {
		return fmt.Errorf("attributes are given to %s", kind(values[0]))
	}
	if _, ok := values[1].(*dict); !ok {
		return fmt.Errorf("attributes are %s", kind(values[1]))
	}
	return m.push(values[0])
}

// kind says what a value is.
func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "a boolean"
	case int64, float64:
		return "a number"
	case string:
		return "a text"
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
