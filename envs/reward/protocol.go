package reward

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"github.com/rltrain/rltrain/internal/program"
)

// notFinite finds rewards that are not JSON but that some encoders write, such as Python's.
var notFinite = regexp.MustCompile(`("reward"\s*:\s*)(NaN|-?Infinity)\b`)

// decode reads a line of a program.
func decode(line []byte) (program.Answer[float64], error) {
	var read struct {
		ID     *uint64  `json:"id"`
		Reward *float64 `json:"reward"`
		Error  string   `json:"error"`
	}
	missing := "the reply has no reward"
	if found := notFinite.FindSubmatch(line); found != nil {
		missing = fmt.Sprintf("the value is %s", found[2])
		line = notFinite.ReplaceAll(line, []byte("${1}null"))
	}
	if err := json.Unmarshal(line, &read); err != nil || read.ID == nil {
		return program.Answer[float64]{}, fmt.Errorf(`invalid line %s; want {"id":7,"reward":0.5}`, hintQuote(string(line)))
	}
	a := program.Answer[float64]{ID: *read.ID}
	switch {
	case read.Error != "":
		a.Err = fmt.Errorf("the program reports %s", hintQuote(read.Error))
	case read.Reward == nil:
		a.Err = errors.New(missing)
	default:
		a.Value = *read.Reward
	}
	return a, nil
}
