package chat

import (
	"encoding/json"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
)

// Continuation returns what the messages of a request add to a conversation that ends with the model's message: messages of the user
// and of tools; nil if they are another conversation.
func Continuation(said, messages []Message) []envs.Message {
	if len(messages) <= len(said) {
		return nil
	}
	for i, m := range said {
		if !same(m, messages[i]) {
			return nil
		}
	}
	added := Said(messages[len(said):])
	for _, m := range added {
		if m.Role != envs.RoleUser && m.Role != envs.RoleTool {
			return nil
		}
	}
	return named(said[len(said)-1], added)
}

// named gives results of the tools that a message called the names that chat templates read, which OpenAI's messages lack.
func named(said Message, results []envs.Message) []envs.Message {
	for i, m := range results {
		id, _ := m.Fields.Get("tool_call_id")
		if name, ok := m.Fields.Get("name"); m.Role != envs.RoleTool || ok && name != nil {
			continue
		}
		for _, call := range calls(said) {
			if known, _ := call.Get("id"); known == id {
				described, _ := call.Get("function")
				function, _ := described.(dataset.Object)
				name, _ := function.Get("name")
				results[i].Fields = m.Fields.With("name", name)
			}
		}
	}
	return results
}

// calls returns the tool calls of a message.
func calls(m Message) (all []dataset.Object) {
	value, _ := dataset.Object(m).Get("tool_calls")
	list, _ := value.([]any)
	for _, one := range list {
		call, _ := one.(dataset.Object)
		all = append(all, call)
	}
	return all
}

// same reports whether two messages have the same role, text and calls; clients add fields and drop others.
func same(a, b Message) bool {
	if a.Role() != b.Role() || a.Text() != b.Text() {
		return false
	}
	x, y := calls(a), calls(b)
	for i := range x {
		if len(x) != len(y) {
			return false
		}
		if called(x[i]) != called(y[i]) {
			return false
		}
	}
	return len(x) == len(y)
}

// called is the name and the arguments of a call.
func called(call dataset.Object) string {
	described, _ := call.Get("function")
	function, _ := described.(dataset.Object)
	name, _ := function.Get("name")
	arguments, _ := function.Get("arguments")
	text, _ := json.Marshal([]any{name, arguments}) // of JSON
	return string(text)
}
