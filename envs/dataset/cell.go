package dataset

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/words"
)

// Text returns a column as text, numbers and booleans as JSON.
func (o Object) Text(column string) (string, error) {
	value, ok := o.Get(column)
	wrong := func(what string) (string, error) { return "", fmt.Errorf("column %s %s", words.Quote(column), what) }
	switch v := value.(type) {
	case nil:
		if ok {
			return wrong("is null; fill it or remove the row")
		}
		return wrong("is missing (the first row has it)")
	case string:
		if strings.TrimSpace(v) == "" {
			return wrong("is empty; fill it or remove the row")
		}
		return v, nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return wrong("is not a finite number")
		}
		return strconv.FormatFloat(v, 'f', -1, 64), nil
	case bool:
		return strconv.FormatBool(v), nil
	case json.Number:
		return v.String(), nil
	default:
		return wrong("is " + Kind(value) + "; want text or a number")
	}
}

// Number returns a column that holds a finite number, or its text.
func (o Object) Number(column string) (float64, error) {
	written, err := o.Text(column)
	if err != nil {
		return 0, err
	}
	x, err := strconv.ParseFloat(strings.TrimSpace(written), 64)
	if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
		return 0, fmt.Errorf("column %s is %s; want a number", words.Quote(column), words.Quote(written))
	}
	return x, nil
}
