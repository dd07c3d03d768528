// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// apiServer is as much of an API server as the driver asks: objects by their path, lists, and watches of ResourceSlices. A real
// one is in real_cluster.py.
type apiServer struct {
	server   *httptest.Server
	mutex    sync.Mutex
	objects  map[string]map[string]any // path to object
	version  int
	watchers map[chan map[string]any]bool
	refuse   map[string]bool // paths that are answered with 500
	counts   map[string]int  // of requests, by method and kind
}

const slicesPath = "/apis/resource.k8s.io/v1/resourceslices"

func startAPIServer(t *testing.T) *apiServer {
	a := &apiServer{objects: map[string]map[string]any{}, watchers: map[chan map[string]any]bool{}, refuse: map[string]bool{}, counts: map[string]int{}}
	a.server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(func() {
		a.server.CloseClientConnections()
		a.server.Close()
	})
	a.put("/api/v1/namespaces/kube-system", map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": "kube-system", "uid": "cluster-1"}})
	a.put("/api/v1/nodes/"+nodeName, map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": nodeName, "uid": "node-uid"}})
	return a
}

func meta(object map[string]any) map[string]any { return object["metadata"].(map[string]any) }

func (a *apiServer) put(path string, object map[string]any) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.store(path, object)
}

func (a *apiServer) store(path string, object map[string]any) {
	a.version++
	meta(object)["resourceVersion"] = fmt.Sprint(a.version)
	kind := "MODIFIED"
	if _, there := a.objects[path]; !there {
		kind = "ADDED"
	}
	a.objects[path] = object
	a.tell(path, kind, object)
}

func (a *apiServer) remove(path string) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	object := a.objects[path]
	delete(a.objects, path)
	a.version++
	a.tell(path, "DELETED", object)
}

func (a *apiServer) tell(path, kind string, object map[string]any) {
	if !strings.HasPrefix(path, slicesPath+"/") {
		return
	}
	copied := map[string]any{}
	text, _ := json.Marshal(object)
	_ = json.Unmarshal(text, &copied)
	for watcher := range a.watchers {
		watcher <- map[string]any{"type": kind, "object": copied}
	}
}

func (a *apiServer) setRefused(path string, refused bool) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.refuse[path] = refused
}

func (a *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimSuffix(r.URL.Path, "/status")
	if r.URL.Query().Get("watch") != "" {
		a.watch(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.counts[r.Method+" "+path]++
	if a.refuse[path] {
		failure(w, http.StatusInternalServerError, "InternalError", "the test refuses it")
		return
	}
	switch r.Method {
	case http.MethodGet:
		a.get(w, path)
	case http.MethodPost:
		object := decode(body)
		name, _ := meta(object)["name"].(string)
		if prefix, _ := meta(object)["generateName"].(string); name == "" {
			name = fmt.Sprintf("%s%d", prefix, a.version)
		}
		meta(object)["name"], meta(object)["uid"] = name, fmt.Sprintf("made-%d", a.version)
		a.store(path+"/"+name, object)
		answer(w, object)
	case http.MethodPut:
		a.update(w, path, decode(body))
	case http.MethodDelete:
		object, there := a.objects[path]
		if !there {
			failure(w, http.StatusNotFound, "NotFound", path)
			return
		}
		delete(a.objects, path)
		a.version++
		a.tell(path, "DELETED", object)
		answer(w, map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Success"})
	default:
		failure(w, http.StatusMethodNotAllowed, "MethodNotAllowed", r.Method)
	}
}

func (a *apiServer) update(w http.ResponseWriter, path string, object map[string]any) {
	before, there := a.objects[path]
	if !there {
		failure(w, http.StatusNotFound, "NotFound", path)
		return
	}
	if old, said := meta(object)["resourceVersion"]; said && old != "" && old != meta(before)["resourceVersion"] {
		failure(w, http.StatusConflict, "Conflict", path)
		return
	}
	a.store(path, object)
	answer(w, object)
}

func (a *apiServer) get(w http.ResponseWriter, path string) {
	if object, there := a.objects[path]; there {
		answer(w, object)
		return
	}
	kinds := map[string]string{slicesPath: "ResourceSliceList", "/apis/resource.k8s.io/v1/resourceclaims": "ResourceClaimList"}
	kind, list := kinds[path]
	if !list {
		failure(w, http.StatusNotFound, "NotFound", path)
		return
	}
	items := []any{}
	for place, object := range a.objects {
		if strings.HasPrefix(place, "/apis/resource.k8s.io/v1/") && strings.HasPrefix(kind, object["kind"].(string)) {
			items = append(items, object)
		}
	}
	answer(w, map[string]any{"apiVersion": "resource.k8s.io/v1", "kind": kind,
		"metadata": map[string]any{"resourceVersion": fmt.Sprint(a.version)}, "items": items})
}

func (a *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("sendInitialEvents") != "" {
		failure(w, http.StatusUnprocessableEntity, "Invalid", "this server has lists only")
		return
	}
	changes := make(chan map[string]any, 1000)
	a.mutex.Lock()
	a.watchers[changes] = true
	a.mutex.Unlock()
	defer func() {
		a.mutex.Lock()
		delete(a.watchers, changes)
		a.mutex.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case change := <-changes:
			if json.NewEncoder(w).Encode(change) != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

// decode takes what client-go sends, be it JSON or protobuf.
func decode(body []byte) map[string]any {
	object, kind, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		panic(err)
	}
	read, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		panic(err)
	}
	read["apiVersion"], read["kind"] = kind.GroupVersion().String(), kind.Kind
	return read
}

func answer(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object)
}

func failure(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message})
}

// slices are the ResourceSlices that are there, by pool.
func (a *apiServer) slices(t *testing.T) map[string]resourceapi.ResourceSliceSpec {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	found := map[string]resourceapi.ResourceSliceSpec{}
	for path, object := range a.objects {
		if !strings.HasPrefix(path, slicesPath+"/") {
			continue
		}
		var slice resourceapi.ResourceSlice
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, &slice); err != nil {
			t.Fatal(err)
		}
		found[slice.Spec.Pool.Name] = slice.Spec
	}
	return found
}

// with returns objects whose paths have `part` in them.
func (a *apiServer) with(part string) []map[string]any {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	var found []map[string]any
	for path, object := range a.objects {
		if strings.Contains(path, part) {
			found = append(found, object)
		}
	}
	return found
}
