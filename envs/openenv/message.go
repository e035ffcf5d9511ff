package openenv

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/words"
)

// Result is what an environment answers.
type Result struct {
	Observation dataset.Object
	Reward      float64 // 0 if it gives none
	Done        bool
}

// Codes of errors that a server sends.
const (
	codeCapacity = "CAPACITY_REACHED"
	codeInvalid  = "VALIDATION_ERROR"
)

// serverError is an error that a server sends.
type serverError struct {
	code, message string
	sessions      int // that the server has at most; 0 = it does not say
}

func (e *serverError) Error() string {
	return fmt.Sprintf("the server reports %s: %s", e.code, words.Quote(e.message))
}

// readResult reads a message of a server: an observation, or an error.
func readResult(text []byte) (r Result, err error) {
	value, err := dataset.Parse(string(text))
	if err != nil {
		return r, fmt.Errorf("invalid message %s: %w", words.QuoteTo(string(text), 100), err)
	}
	message, _ := value.(dataset.Object)
	kind, _ := message.Get("type")
	raw, _ := message.Get("data")
	data, ok := raw.(dataset.Object)
	if !ok || kind != "observation" && kind != "error" {
		return r, fmt.Errorf(`invalid message %s; want {"type": "observation", "data": {…}}`, words.QuoteTo(string(text), 100))
	}
	if kind == "error" {
		e := &serverError{code: textOf(data, "code"), message: textOf(data, "message")}
		if n, _ := data.Get("max_sessions"); n != nil {
			most, _ := n.(int64)
			e.sessions = int(max(0, most))
		}
		return r, e
	}
	for _, f := range data {
		ok := true
		switch f.Name {
		case "observation":
			r.Observation, ok = f.Value.(dataset.Object)
		case "reward":
			r.Reward, ok = number(f.Value)
		case "done":
			r.Done, ok = f.Value.(bool)
		}
		if !ok {
			return r, fmt.Errorf("%s: got %s", f.Name, dataset.Kind(f.Value))
		}
	}
	if r.Observation == nil {
		return r, errors.New("a message without an observation")
	}
	return r, nil
}

// number is a reward: a number, a boolean, or null for none.
func number(value any) (float64, bool) {
	switch v := value.(type) {
	case nil:
		return 0, true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// textOf is a field that is a text, else "".
func textOf(o dataset.Object, name string) string {
	value, _ := o.Get(name)
	text, _ := value.(string)
	return text
}

// Text is the observation as a model reads it: its only field if that is a text, else its fields as JSON. Fields without
// a value do not count, and metadata only if there is nothing else.
func (r Result) Text() (string, error) {
	var shown dataset.Object
	for _, f := range r.Observation {
		if f.Value != nil && f.Value != "" && f.Name != "metadata" {
			shown = append(shown, f)
		}
	}
	if shown == nil {
		metadata, _ := r.Observation.Get("metadata")
		shown, _ = metadata.(dataset.Object)
		if prompt, ok := shown.Get("prompt"); ok { // of environments that were imported from OpenReward
			shown = dataset.Object{{Name: "prompt", Value: contentText(prompt)}}
		}
	}
	if len(shown) == 0 {
		return "", nil
	}
	if text, ok := shown[0].Value.(string); ok && len(shown) == 1 {
		return text, nil
	}
	text, err := shown.MarshalJSON()
	return string(text), err
}

// contentText joins the texts of a list of content blocks, {"type": "text", "text": …}. Another value is returned as it is.
func contentText(value any) any {
	list, ok := value.([]any)
	if !ok {
		return value
	}
	var texts []string
	for _, one := range list {
		block, _ := one.(dataset.Object)
		text, ok := block.Get("text")
		if _, isText := text.(string); !ok || !isText {
			return value
		}
		texts = append(texts, text.(string))
	}
	return strings.Join(texts, "\n")
}

// toolText is the result of a tool call as a model reads it. An error is one for the model.
func (r Result) toolText() (string, error) {
	if failed, _ := r.Observation.Get("error"); failed != nil {
		if described, ok := failed.(dataset.Object); ok {
			if message := textOf(described, "message"); message != "" {
				return "", errors.New(message)
			}
		}
		return "", errors.New(shown(failed))
	}
	result, ok := r.Observation.Get("result")
	if !ok {
		return r.Text()
	}
	called, ok := result.(dataset.Object)
	if !ok {
		return shown(result), nil
	}
	content, ok := called.Get("content")
	if !ok {
		return shown(called), nil
	}
	text := shown(contentText(content))
	if failed, _ := called.Get("is_error"); failed == true {
		return "", errors.New(text)
	}
	return text, nil
}

// shown is a value as text: a text as it is, anything else as JSON.
func shown(value any) string {
	if text, ok := value.(string); ok {
		return text
	}
	text, err := files.EncodeLine(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
