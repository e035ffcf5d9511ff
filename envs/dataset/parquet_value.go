package dataset

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"github.com/rltrain/rltrain/internal/words"
)

// Layouts of times without a zone.
const (
	clockLayout = "15:04:05.999999999"
	localLayout = "2006-01-02T" + clockLayout
)

// converter returns a function that converts a leaf's non-null values to Record values that do not refer to the page.
// Errors are *badValue.
func converter(node *parquet.Column) (func(parquet.Value) (any, error), error) {
	if logical := node.Type().LogicalType(); logical != nil {
		switch t := logical.Value.(type) {
		case *format.StringType, *format.EnumType, *format.JsonType:
			return textOf, nil
		case *format.DateType:
			return func(v parquet.Value) (any, error) {
				return time.Unix(int64(v.Int32())*24*60*60, 0).UTC().Format(time.DateOnly), nil
			}, nil
		case *format.TimestampType:
			return timestamps(t)
		case *format.TimeType:
			return clocks(t)
		case *format.DecimalType:
			return decimals(int(t.Scale)), nil
		case *format.IntType:
			if !t.IsSigned {
				return unsignedOf, nil
			}
		case *format.UUIDType:
			return func(v parquet.Value) (any, error) {
				b := v.ByteArray()
				return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16]), nil
			}, nil
		case *format.NullType:
			return func(parquet.Value) (any, error) { return nil, nil }, nil
		}
	}
	return plainOf, nil
}

func plainOf(v parquet.Value) (any, error) {
	switch v.Kind() {
	case parquet.Boolean:
		return v.Boolean(), nil
	case parquet.Int32:
		return int64(v.Int32()), nil
	case parquet.Int64:
		return v.Int64(), nil
	case parquet.Int96:
		// Timestamps of old writers: nanoseconds of the day, Julian day.
		n := v.Int96()
		nanos := int64(n[1])<<32 | int64(n[0])
		return time.Unix((int64(n[2])-2_440_588)*24*60*60, nanos).UTC().Format(localLayout), nil
	case parquet.Float:
		return float64(v.Float()), nil
	case parquet.Double:
		return v.Double(), nil
	}
	return slices.Clone(v.ByteArray()), nil
}

func textOf(v parquet.Value) (any, error) {
	text := string(v.ByteArray())
	if !utf8.ValidString(text) {
		return nil, &badValue{fmt.Errorf("invalid UTF-8 in %s; save the file as UTF-8", words.Quote(text))}
	}
	return text, nil
}

func unsignedOf(v parquet.Value) (any, error) {
	if v.Kind() == parquet.Int32 {
		return int64(v.Uint32()), nil
	}
	if n := v.Uint64(); n > math.MaxInt64 {
		return json.Number(strconv.FormatUint(n, 10)), nil
	}
	return v.Int64(), nil
}

func timestamps(t *format.TimestampType) (func(parquet.Value) (any, error), error) {
	layout := localLayout
	if t.IsAdjustedToUTC {
		layout = time.RFC3339Nano
	}
	if t.Unit.Value == nil {
		return nil, errors.New("a timestamp has no unit")
	}
	perSecond := int64(time.Second / t.Unit.Value.Duration())
	return func(v parquet.Value) (any, error) {
		seconds, rest := v.Int64()/perSecond, v.Int64()%perSecond
		return time.Unix(seconds, rest*int64(time.Second)/perSecond).UTC().Format(layout), nil
	}, nil
}

func clocks(t *format.TimeType) (func(parquet.Value) (any, error), error) {
	if t.Unit.Value == nil {
		return nil, errors.New("a time has no unit")
	}
	unit := t.Unit.Value.Duration()
	return func(v parquet.Value) (any, error) {
		n := int64(v.Int32())
		if v.Kind() == parquet.Int64 {
			n = v.Int64()
		}
		return time.Unix(0, n*int64(unit)).UTC().Format(clockLayout), nil
	}, nil
}

func decimals(scale int) func(parquet.Value) (any, error) {
	return func(v parquet.Value) (any, error) {
		n := new(big.Int)
		switch v.Kind() {
		case parquet.Int32:
			n.SetInt64(int64(v.Int32()))
		case parquet.Int64:
			n.SetInt64(v.Int64())
		default: // big-endian, two's complement
			b := v.ByteArray()
			n.SetBytes(b)
			if len(b) > 0 && b[0] >= 0x80 {
				n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
			}
		}
		return decimalText(n, scale)
	}
}

func decimalText(n *big.Int, scale int) (any, error) {
	if scale < 0 || scale > 1000 {
		return nil, &badValue{fmt.Errorf("a decimal has %d fractional digits", scale)}
	}
	digits := new(big.Int).Abs(n).String()
	if scale > 0 {
		digits = strings.Repeat("0", max(0, scale+1-len(digits))) + digits
		digits = digits[:len(digits)-scale] + "." + digits[len(digits)-scale:]
	}
	if n.Sign() < 0 {
		digits = "-" + digits
	}
	return json.Number(digits), nil
}
