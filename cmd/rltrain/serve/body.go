package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rltrain/rltrain/internal/jsonapi"
)

// counted is a body whose bytes count among those of all requests.
type counted struct {
	io.ReadCloser
	all  *atomic.Int64
	mine int64
}

func (c *counted) Read(data []byte) (int, error) {
	n, err := c.ReadCloser.Read(data)
	c.mine += int64(n)
	if c.all.Add(int64(n)) > mostBodies {
		return n, errBusy
	}
	return n, err
}

// release returns the bytes when the request has been answered.
func (c *counted) release() { c.all.Add(-c.mine) }

// readBody decodes the JSON object of a request with at most limit bytes. Unknown fields are errors, except those in
// neutral with one of their listed values, which have no effect. Names of fields are case-sensitive.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, limit int64, into any, neutral map[string][]string) error {
	return s.ReadBody(w, r, limit, func(data []byte) error { return decode(data, into, neutral) })
}

// ReadBody calls decode with the body of a request, of at most limit bytes, when there is a place for it.
func (s *Server) ReadBody(w http.ResponseWriter, r *http.Request, limit int64, decode func(data []byte) error) error {
	// A browser sends Origin. Without JSON's type, any page that is open there could send requests to a local server.
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if r.Header.Get("Origin") != "" && (err != nil || kind != "application/json") {
		return refuse(http.StatusUnsupportedMediaType, "", "send JSON with the header Content-Type: application/json")
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return refuse(http.StatusRequestEntityTooLarge, "", "the body is longer than %d bytes", long.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse(http.StatusRequestTimeout, "", "the body did not arrive in time")
	case errors.Is(err, errBusy):
		return err
	case err != nil:
		return refuse(http.StatusBadRequest, "", "reading the body: %v", err)
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // generation may take longer
	return s.prepare(r.Context(), len(data), func() error { return decode(data) })
}

func decode(data []byte, into any, neutral map[string][]string) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil || fields == nil {
		return refuse(http.StatusBadRequest, "", "the body is not a JSON object%s", because(err))
	}
	if name, err := jsonapi.DropNeutral(fields, fieldNames(reflect.TypeOf(into).Elem()), neutral); err != nil {
		return bad(clipped(name), "%v", err)
	}
	rest, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(rest, into); err != nil {
		var kind *json.UnmarshalTypeError
		var own *refusal
		switch {
		case errors.As(err, &own):
			return own
		case errors.As(err, &kind):
			field := strings.TrimPrefix(kind.Field, "sampling.")
			return bad(field, "%s: got a %s, want %s", field, clipped(kind.Value), jsonKind(kind.Type))
		}
		return refuse(http.StatusBadRequest, "", "decoding the body%s", because(err))
	}
	return nil
}

// clipped is the start of a long text that an error quotes.
func clipped(text string) string { return fmt.Sprintf("%.100s", text) }

// fieldNames lists the JSON names of a struct's fields, those of embedded structs included.
func fieldNames(t reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(t) {
		if name := f.Tag.Get("json"); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// jsonKind names the JSON type that decodes into t.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Pointer:
		return jsonKind(t.Elem())
	case reflect.Float64:
		return "a number up to 1.8e308"
	}
	return fmt.Sprintf("a whole number of %d bits", t.Bits())
}

func because(err error) string {
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &kind):
		return " but a " + clipped(kind.Value)
	}
	return ": " + err.Error()
}
