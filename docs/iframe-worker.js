// Browsers start no worker of a page that is opened from a disk. The search then runs in a hidden frame in place of one.
// Material's offline plugin takes a script by this name in place of one from elsewhere.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(script) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = new Promise((done) => {
        const element = this.inner.document.createElement("script");
        element.onload = done;
        element.src = script;
        this.inner.document.body.append(element);
      });
    }
    postMessage(data) {
      this.loaded.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
