package torch

// #include <stdlib.h>
// #include "loader.h"
import "C"

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"
)

// Store is the rendezvous of a group's processes: c10d's TCPStore. It is not safe for concurrent use.
type Store struct{ native *C.rlt_store }

// OpenStore opens the store at host and port: as its server on the listening socket fd, which it takes over, or with fd -1
// as a client. prefix precedes every key.
//
// Errors: no reply before the timeout, or a reply that is not from a store.
func OpenStore(host string, port, fd int, prefix string, timeout time.Duration) (*Store, error) {
	if err := Open(0); err != nil {
		return nil, err
	}
	chost, cprefix := C.CString(host), C.CString(prefix)
	defer C.free(unsafe.Pointer(chost))
	defer C.free(unsafe.Pointer(cprefix))
	s := &Store{}
	if err := nativeError("OpenStore", C.rlt_store_open(chost, C.int32_t(port), C.int32_t(fd), cprefix, milliseconds(timeout), &s.native)); err != nil {
		return nil, err
	}
	return s, nil
}

func milliseconds(d time.Duration) C.int32_t { return C.int32_t(max(1, min(d.Milliseconds(), 1<<30))) }

// Set sets a key for all processes.
func (s *Store) Set(key, value string) error {
	ckey, cvalue := C.CString(key), C.CString(value)
	defer C.free(unsafe.Pointer(ckey))
	defer C.free(unsafe.Pointer(cvalue))
	return nativeError("Store.Set", C.rlt_store_set(s.native, ckey, cvalue))
}

// storeValue is the maximum length of a value in bytes.
const storeValue = 4095

// Get waits until key is set and returns its value.
func (s *Store) Get(key string, timeout time.Duration) (string, error) {
	ckey := C.CString(key)
	defer C.free(unsafe.Pointer(ckey))
	var value [storeValue + 1]C.char
	if err := nativeError("Store.Get", C.rlt_store_get(s.native, ckey, milliseconds(timeout), &value[0], C.int32_t(len(value)))); err != nil {
		return "", err
	}
	return C.GoString(&value[0]), nil
}

// Close leaves the store; the server also closes its port. A second Close does nothing.
func (s *Store) Close() {
	C.rlt_store_free(s.native)
	s.native = nil
}

// Group is a set of data-parallel processes connected by gloo. Its calls are collective: all processes make them in the
// same order. It is not safe for concurrent use.
type Group struct {
	native *C.rlt_group
	size   int
}

// Group connects the size processes of the store, over the network interface with the IP address address. timeout applies to
// this and each later call. The store may be closed once all are connected.
func (s *Store) Group(address string, rank, size int, timeout time.Duration) (*Group, error) {
	caddress := C.CString(address)
	defer C.free(unsafe.Pointer(caddress))
	g := &Group{size: size}
	if err := nativeError("Store.Group", C.rlt_group_new(s.native, caddress, C.int32_t(rank), C.int32_t(size), milliseconds(timeout), &g.native)); err != nil {
		return nil, err
	}
	return g, nil
}

// SumGrads sums the gradients of parameters over all processes, bit-identically everywhere and in every run of this size. A
// gradient that a process lacks counts as 0; one that all lack stays absent.
func (g *Group) SumGrads(vs []*Var) error {
	return Do(NoGrad, func(s *Scope) error {
		handles := make([]C.rlt_tensor, len(vs))
		for i, v := range vs {
			s.check(v.T())
			handles[i] = v.handle
		}
		must("SumGrads", C.rlt_group_sum_grads(g.native, unsafe.SliceData(handles), C.int32_t(len(handles))))
		return nil
	})
}

// Gather returns the data of each process, by rank. All must pass the same number of bytes, at least one.
func (g *Group) Gather(data []byte) ([][]byte, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("torch: Gather: no data")
	}
	all := make([]byte, g.size*len(data))
	err := nativeError("Gather", C.rlt_group_gather(g.native, unsafe.Pointer(unsafe.SliceData(data)), C.int64_t(len(data)), unsafe.Pointer(unsafe.SliceData(all))))
	runtime.KeepAlive(data)
	if err != nil {
		return nil, err
	}
	parts := make([][]byte, g.size)
	for i := range parts {
		parts[i] = all[i*len(data) : (i+1)*len(data)]
	}
	return parts, nil
}

// Close ends the connections. No call may be running; a second Close does nothing.
func (g *Group) Close() {
	C.rlt_group_free(g.native)
	g.native = nil
}
