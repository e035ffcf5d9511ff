package dataset

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// readArrow reads Arrow's streaming format, as written by save_to_disk of Hugging Face's datasets.
func readArrow(path string, want *wanted, each func(Record) error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("reading data set: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("reading data set: %w", err)
	}
	return readArrowFrom(f, info.Size(), path, want, each)
}

// errDamaged means that a file's bytes are not valid Arrow.
var errDamaged = errors.New("not an Arrow stream, or damaged")

func readArrowFrom(in io.Reader, size int64, path string, want *wanted, each func(Record) error) error {
	row := 0
	r, err := openArrow(&checkedArrow{in: in, left: size})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer r.Release()
	for {
		batch, err := nextBatch(r)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		columns, err := arrowColumns(batch, path, want)
		if err != nil {
			return err
		}
		for i := range int(batch.NumRows()) {
			row++
			fields := make(Object, len(columns))
			for j, c := range columns {
				value, err := arrowValue(c.values, i, 0)
				if err != nil {
					return fmt.Errorf("%s:%d: column %q: %w", path, row, c.name, err)
				}
				fields[j] = Field{c.name, value}
			}
			if err := each(Record{File: path, Line: row, Fields: fields, Padded: true}); err != nil {
				return err
			}
		}
	}
}

// arrowColumn is a wanted column of a batch.
type arrowColumn struct {
	name   string
	values arrow.Array
}

func arrowColumns(batch arrow.RecordBatch, path string, want *wanted) ([]arrowColumn, error) {
	var columns []arrowColumn
	var chosen Object
	var present []string
	seen := map[string]bool{}
	for i, field := range batch.Schema().Fields() {
		if seen[field.Name] {
			return nil, fmt.Errorf("%s: column %q occurs twice", path, field.Name)
		}
		present = append(present, field.Name)
		if want.has([]byte(field.Name)) {
			columns = append(columns, arrowColumn{field.Name, batch.Column(i)})
			chosen = append(chosen, Field{Name: field.Name})
		}
	}
	return columns, want.check(place{path: path}, chosen, func() []string { return present })
}

// The library panics on some damaged files.
func openArrow(in io.Reader) (r *ipc.Reader, err error) {
	defer undamaged(&err)
	r, err = ipc.NewReader(in, ipc.WithAllocator(bounded{memory.NewGoAllocator()}))
	return r, arrowError(err)
}

func nextBatch(r *ipc.Reader) (batch arrow.RecordBatch, err error) {
	defer undamaged(&err)
	batch, err = r.Read()
	if err == io.EOF {
		return nil, err
	}
	return batch, arrowError(err)
}

func undamaged(err *error) {
	if failure := recover(); failure != nil {
		*err = arrowError(fmt.Errorf("%v", failure))
	}
}

func arrowError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w (%.200s)", errDamaged, strings.Join(strings.Fields(err.Error()), " "))
}

// bounded refuses allocations larger than a batch can need.
type bounded struct{ memory.Allocator }

func (b bounded) Allocate(size int) []byte {
	if size < 0 || size > math.MaxInt32 {
		panic(fmt.Sprintf("allocation of %d bytes", size))
	}
	return b.Allocator.Allocate(size)
}

func (b bounded) Reallocate(size int, old []byte) []byte {
	if size < 0 || size > math.MaxInt32 {
		panic(fmt.Sprintf("allocation of %d bytes", size))
	}
	return b.Allocator.Reallocate(size, old)
}
