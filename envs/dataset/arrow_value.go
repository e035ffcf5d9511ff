package dataset

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/rltrain/rltrain/internal/words"
)

// arrowValue converts element i of a column to a Record value.
func arrowValue(values arrow.Array, i, depth int) (value any, err error) {
	defer undamaged(&err)
	if depth > maxDepth {
		return nil, fmt.Errorf("arrays and objects are nested deeper than %d", maxDepth)
	}
	if values.IsNull(i) {
		return nil, nil
	}
	switch v := values.(type) {
	case *array.Null:
		return nil, nil
	case *array.Boolean:
		return v.Value(i), nil
	case *array.String:
		return arrowText(v.Value(i))
	case *array.LargeString:
		return arrowText(v.Value(i))
	case *array.StringView:
		return arrowText(v.Value(i))
	case *array.Binary:
		return append([]byte(nil), v.Value(i)...), nil
	case *array.LargeBinary:
		return append([]byte(nil), v.Value(i)...), nil
	case *array.Struct:
		return arrowObject(v, i, depth)
	case *array.Map:
		return arrowMap(v, i, depth)
	case array.ListLike:
		from, to := v.ValueOffsets(i)
		if from < 0 || to < from || to > int64(v.ListValues().Len()) {
			return nil, errDamaged
		}
		list := make([]any, 0, to-from)
		for j := from; j < to; j++ {
			element, err := arrowValue(v.ListValues(), int(j), depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, element)
		}
		return list, nil
	case *array.Dictionary:
		return arrowValue(v.Dictionary(), v.GetValueIndex(i), depth+1)
	}
	return arrowScalar(values, i)
}

func arrowText(text string) (any, error) {
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("invalid UTF-8 in %s; save the file as UTF-8", words.Quote(text))
	}
	return strings.Clone(text), nil
}

func arrowObject(v *array.Struct, i, depth int) (any, error) {
	fields := v.DataType().(*arrow.StructType).Fields()
	out := make(Object, len(fields))
	for j, field := range fields {
		value, err := arrowValue(v.Field(j), i, depth+1)
		if err != nil {
			return nil, err
		}
		out[j] = Field{field.Name, value}
	}
	return out, nil
}

func arrowMap(v *array.Map, i, depth int) (any, error) {
	from, to := v.ValueOffsets(i)
	if from < 0 || to < from || to > int64(v.Keys().Len()) {
		return nil, errDamaged
	}
	out := make(Object, 0, to-from)
	for j := from; j < to; j++ {
		key, err := arrowValue(v.Keys(), int(j), depth+1)
		if err != nil {
			return nil, err
		}
		name, ok := key.(string)
		if !ok {
			return nil, fmt.Errorf("a map key is %s, want text", Kind(key))
		}
		if _, twice := out.Get(name); twice {
			return nil, fmt.Errorf("duplicate map key %s", words.Quote(name))
		}
		value, err := arrowValue(v.Items(), int(j), depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, Field{name, value})
	}
	return out, nil
}

// arrowScalar converts a number or time.
func arrowScalar(values arrow.Array, i int) (any, error) {
	switch v := values.(type) {
	case *array.Int8:
		return int64(v.Value(i)), nil
	case *array.Int16:
		return int64(v.Value(i)), nil
	case *array.Int32:
		return int64(v.Value(i)), nil
	case *array.Int64:
		return v.Value(i), nil
	case *array.Uint8:
		return int64(v.Value(i)), nil
	case *array.Uint16:
		return int64(v.Value(i)), nil
	case *array.Uint32:
		return int64(v.Value(i)), nil
	case *array.Uint64:
		if n := v.Value(i); n > math.MaxInt64 {
			return json.Number(strconv.FormatUint(n, 10)), nil
		}
		return int64(v.Value(i)), nil
	case *array.Float16:
		return float64(v.Value(i).Float32()), nil
	case *array.Float32:
		return float64(v.Value(i)), nil
	case *array.Float64:
		return v.Value(i), nil
	case *array.Date32:
		return v.Value(i).ToTime().Format(time.DateOnly), nil
	case *array.Date64:
		return v.Value(i).ToTime().Format(time.DateOnly), nil
	case *array.Timestamp:
		kind := v.DataType().(*arrow.TimestampType)
		layout := localLayout
		if kind.TimeZone != "" {
			layout = time.RFC3339Nano
		}
		return v.Value(i).ToTime(kind.Unit).UTC().Format(layout), nil
	}
	return nil, fmt.Errorf("cannot read Arrow type %s; remove the column", values.DataType())
}
