package reward

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
)

// encode writes a question as a line.
func encode(question any) ([]byte, error) {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false) // for programs that look for a text without reading JSON
	if err := encoder.Encode(question); err != nil {
		return nil, err
	}
	if line.Len() > maxLine {
		return nil, fmt.Errorf("the question has %d bytes: at most %d can be asked", line.Len(), maxLine)
	}
	return line.Bytes(), nil
}

// answer is what a program says about the sample of a question.
type answer struct {
	ID    uint64
	value float64
	err   error // why there is no value
}

// notFinite finds the rewards that JSON cannot say but some writers of JSON do, Python's among
// them.
var notFinite = regexp.MustCompile(`("reward"\s*:\s*)(NaN|-?Infinity)\b`)

// decode reads a line of a program.
func decode(line []byte) (answer, error) {
	var read struct {
		ID     *uint64  `json:"id"`
		Reward *float64 `json:"reward"`
		Error  string   `json:"error"`
	}
	missing := "the program gives no reward"
	if found := notFinite.FindSubmatch(line); found != nil {
		missing = fmt.Sprintf("the value is %s", found[2])
		line = notFinite.ReplaceAll(line, []byte("${1}null"))
	}
	if err := json.Unmarshal(line, &read); err != nil || read.ID == nil {
		return answer{}, fmt.Errorf(`the program writes %s, not a line such as {"id":7,"reward":0.5}`, hintQuote(string(line)))
	}
	a := answer{ID: *read.ID}
	switch {
	case read.Error != "":
		a.err = fmt.Errorf("the program says %s", hintQuote(read.Error))
	case read.Reward == nil:
		a.err = errors.New(missing)
	default:
		a.value = *read.Reward
	}
	return a, nil
}
