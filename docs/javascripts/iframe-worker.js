// A page that is opened as a file may start no worker. There the search runs in a hidden frame, which has a worker's
// postMessage, onmessage and importScripts.
(() => {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = this.onerror = null;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      const page = frame.contentDocument;
      const outer = this;
      this.inner.postMessage = (data) => outer.tell(new MessageEvent("message", { data }));
      this.inner.importScripts = (...urls) =>
        urls.reduce(
          (before, source) =>
            before.then(
              () =>
                new Promise((loaded, failed) => {
                  const script = page.createElement("script");
                  Object.assign(script, { src: source, onload: loaded, onerror: failed });
                  page.body.append(script);
                }),
            ),
          Promise.resolve(),
        );
      this.waiting = [];
      this.ready = false;
      const script = page.createElement("script");
      script.onload = () => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.deliver(data));
      };
      script.src = url;
      page.body.append(script);
    }

    tell(event) {
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    deliver(data) {
      this.inner.dispatchEvent(new MessageEvent("message", { data }));
    }

    postMessage(data) {
      if (this.ready) this.deliver(data);
      else this.waiting.push(data);
    }

    terminate() {
      this.inner.frameElement.remove();
    }
  }

  if (location.protocol === "file:") {
    window.IFrameWorker = IFrameWorker;
    window.Worker = IFrameWorker;
  }
})();
